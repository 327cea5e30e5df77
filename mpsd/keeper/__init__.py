"""mpsd's side of the keeper: its protocol, its process, the connections and the GPU memory that it holds."""
