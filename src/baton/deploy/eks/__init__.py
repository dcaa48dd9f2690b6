"""From the user's YAML to the files of an EKS cluster. Read in this order.

    config.py      the settings: what they are, and what may stand in them
    origins.py     flag, environment, file or default: where each value comes from
    instances.py   what EC2 instance types have (figures from moto's table, with its date)
    placement.py   the user's YAML, so that Serve keeps each phase on its own nodes
    layout.py      both put together: node groups, workers, GPUs, EFA interfaces, memory
    cluster.py nodegroup.py    what eksctl makes
    kuberay.py     Helm values: operator, device plugins, load balancer controller
    pods.py        what head and workers have in common in both flavours
    rayservice.py  the RayService          plain.py   the same without an operator
    policies.py    NetworkPolicy, PodDisruptionBudget, Ingress, monitoring
    render.py      all of them as texts    folder.py  writing them, never over foreign work
    live/          asks an account and changes it: checks, plan, apply, delete, status, verify

Everything up to `render.py` is pure: no clock, no network, no chance, nothing of this machine. The
same file, settings and environment give the same bytes.
"""
