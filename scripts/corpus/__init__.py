"""What `package_corpus` does: fetch packages, make text of their files, choose what is kept."""
