package cuda

// SyncMemops reads CU_POINTER_ATTRIBUTE_SYNC_MEMOPS back.
func (m *Memory) SyncMemops() (bool, error) { return m.syncMemops() }

// GPUNode is gpuNode.
func GPUNode(procfs, address string) string { return gpuNode(procfs, address) }
