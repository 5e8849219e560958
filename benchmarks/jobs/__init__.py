"""Jobs whose fault is known, and what whystall says of them."""
