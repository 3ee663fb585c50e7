"""Readers of Hugging Face config.json files, one small function a family; see hf_config.py, the way in."""
