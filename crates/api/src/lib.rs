//! Every API type Drover reads or writes, one module per group.
