"""Decoding whose state stays on the device, for engines that replay recorded work."""
