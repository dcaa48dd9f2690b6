"""Failures on purpose, under load, and a table of what was lost.

`asks` makes a mix of requests and learns how each is answered when nothing is disturbed; `client`
sends one and reads what comes; `judge` says whether it was lost, broken, different or right; `load`
keeps many going; `scenarios` break something meanwhile, through an `injector.Injector`; `run` plays
them one by one; `report` is the table. `proxy` is a bad network between a gateway and its engines.

The room knows HTTP only: nothing of gateways, engines or deployments from the inside. What can be
broken, and how, is the injector's business, and `baton.deploy` has two: simulated engines of its
own (`simulated_stack`), and a deployment that `baton up` made (`local_faults`).

What counts as lost, and why: docs/decisions/0009-drill.md.
"""
