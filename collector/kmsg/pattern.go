package kmsg

// Pattern names a kind of line, as the label pattern has it.
type Pattern string
