"""Thin HTTP routes: parse, call one service, answer."""
