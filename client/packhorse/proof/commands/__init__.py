"""Commands that prove and watch: audits, diagnosis, activity and load."""
