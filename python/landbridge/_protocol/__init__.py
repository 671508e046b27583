"""The protocol between a trainer and its gateway; docs/protocol.md section 5."""
