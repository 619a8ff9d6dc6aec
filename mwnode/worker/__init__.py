"""Do WorkItems: take offers that can be kept, run them fairly in isolated slots, and hand in what they made."""
