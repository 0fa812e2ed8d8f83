"""Other people's formats, in and out: Hugging Face folders, llama2.c, PyTorch state dicts. Every way verifies its own work."""
