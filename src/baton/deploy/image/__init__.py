"""Whether a container image holds what it says: `baton image check`, run inside it.

`look` collects facts and judges nothing; `rules` judges facts and looks at nothing. In between is
`ImageFacts`. Three images are made in `deploy/image/` (docs/decisions/0025-images.md): `cpu` and
`gpu` from `requirements/`, and `layer` on AWS' container, of which only the matched set is ours.
"""
