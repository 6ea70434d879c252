"""The protocol between spoke and hub, without a socket or a clock; PROTOCOL.md is its normative text."""
