"""Grafana dashboards and Prometheus rules, as code: `baton dashboards` writes them.

`alerts` says when somebody should be called and what to do then, `panels` what is worth looking at,
`grafana` and `prometheus` how both tools want to have it. Expressions name metrics by their
definitions, so a metric that is renamed breaks here and not on a night in spring; a test parses
every expression and runs the gateway to see that each metric and label is really there.
"""
