"""Drive a Mission from a plan file: authorize, offer, review, submit."""
