"""What demonstrations measure or compute, apart from how they show it: a module for each that has much, of its name."""
