"""Layouts as diagrams, and diagrams as SVG, HTML, DOT and Mermaid documents."""
