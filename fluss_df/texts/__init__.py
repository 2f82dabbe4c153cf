"""What people are shown: tables of HTML, and texts without the secrets in them."""
