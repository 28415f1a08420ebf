"""Small services to copy from. Each starts with `make example NAME=shop_fastapi`, and its README tells what to try."""
