"""Proofs of exactness: enumeration, the audit, fit, rounding, planted mistakes, rules judged on the same trees."""
