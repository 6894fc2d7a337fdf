"""lipforge: forge a trained image classifier in one pass, and find out honestly whether it got harder to fool."""
