"""What asks an account and changes it; the files that it uses come from the pure rooms above.

    commands.py   a command, its answer, and the shell that runs it with a kubeconfig of its own
    aws.py        one read-only call to AWS, through boto3
    states.py     absent, creating, ready, failed, deleting, unknown
    parts.py      everything that is made, in order: how it is made, changed and deleted
    observe.py    in which state a part is    eyes_*.py    reading the answers of AWS, helm, kubectl
    decide.py     what follows from that, pure
    walk.py       observe, decide, act    apply.py teardown.py    the way up, the way down
    waits.py      whether pods and Serve are getting there, and the reason when they are not
    facts.py collect.py     what is asked before anything is changed
    checks.py checks_*.py   the rules over those facts, pure
    prices.py runbook.py    what it costs, and the text of a plan
    status.py inside.py     what runs where; `baton verify` in the cluster

Nothing unknown is taken for absent: what cannot be seen is neither made nor deleted.
"""
