package driver

// DMABuf is a buffer of GPU memory that the driver has exported as dma-buf.
type DMABuf struct {
	Bytes uint64
	// Attached are the devices attached to it, as the kernel names them: the PCI
	// address of a NIC that has registered it.
	Attached []string
}
