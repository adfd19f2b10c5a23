"""The HTTP front end: AWS's protocols, access, validation, and moto behind them."""
