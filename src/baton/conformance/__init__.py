"""Do clients of the OpenAI API find what they expect? Cases over HTTP, against any endpoint.

`cases/` holds what is asked and what the standard says of it; `probe` asks and reads, through
`wire` (raw HTTP, so that the bytes can be split anywhere) and `sse` (events out of bytes); `run`
gives each case its deadline and its verdict; `compare` puts two endpoints side by side and says why
they differ; `report` writes it down.

Nothing here knows what is behind the endpoint: it may be Baton, a vLLM engine or anything else.
"""
