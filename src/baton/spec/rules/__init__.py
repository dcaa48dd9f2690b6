"""The rules: what cannot work, and why.

One function a rule. A rule refuses only what the pinned Ray, vLLM or NIXL source refuses, or is
known to get wrong; its docstring says why and names file and condition. `baton explain BTN-121`
prints it, and `docs/reference/rules.md` is generated from all of them.

Versions meant throughout: vLLM 0.29.0, Ray 2.60.0, NIXL 1.3.2. `nixl/` stands for
`vllm/distributed/kv_transfer/kv_connector/v1/nixl/`.
"""

from baton.spec.rules.registry import RULES, Finding, Rule, all_rules, find_rule

__all__ = ["RULES", "Finding", "Rule", "all_rules", "find_rule"]
