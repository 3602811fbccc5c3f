"""isostep: fine-tuning whose numbers do not change when the hardware does."""
