"""Other tools' ways of saying which kernel runs where, to documents and back."""
