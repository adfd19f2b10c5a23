"""What a client of the platform meets: the HTTP front, AWS's protocols, access, validation,
and moto behind it.
"""
