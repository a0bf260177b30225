"""Sharing of handles between processes: offers, packets, endpoints of sockets, and the client of a holder.

`docs/protocol.md` describes the packets for other clients.
"""
