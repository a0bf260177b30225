"""Layouts as documents: what a picture is as SVG, HTML, DOT and Mermaid."""
