"""Proof: audits of epochs, components and tokens, the doctor, health, and what servers do now."""
