package nldev

// family is NETLINK_RDMA (include/uapi/linux/netlink.h).
const family = 20

// client is RDMA_NL_NLDEV; a message's type is client << 10 + command.
const client = 5

// groupNotify is RDMA_NL_GROUP_NOTIFY, the multicast group of MONITOR events,
// Linux 6.12 and later.
const groupNotify = 4

// command is a RDMA_NLDEV_CMD_ number.
type command uint16

const (
	cmdGet           command = 1
	cmdPortGet       command = 5
	cmdSysGet        command = 6
	cmdResGet        command = 9
	cmdResMRGet      command = 13
	cmdStatGet       command = 17
	cmdResCtxGet     command = 22
	cmdStatGetStatus command = 24
	cmdMonitor       command = 28
)

// names are the commands' names in errors and metrics.
var names = map[command]string{
	cmdGet: "GET", cmdPortGet: "PORT_GET", cmdSysGet: "SYS_GET", cmdResGet: "RES_GET", cmdResMRGet: "RES_MR_GET",
	cmdStatGet: "STAT_GET", cmdResCtxGet: "RES_CTX_GET", cmdStatGetStatus: "STAT_GET_STATUS", cmdMonitor: "MONITOR",
}

// String returns the command's name.
func (c command) String() string { return names[c] }

// RDMA_NLDEV_ATTR_ numbers.
const (
	attrDevIndex         = 1  // u32
	attrDevName          = 2  // string
	attrPortIndex        = 3  // u32; in GET the number of ports
	attrFWVersion        = 5  // string
	attrNodeGUID         = 6  // u64, host byte order
	attrSysImageGUID     = 7  // u64, host byte order
	attrLID              = 9  // u32
	attrSMLID            = 10 // u32
	attrPortState        = 12 // u8
	attrPortPhysState    = 13 // u8
	attrNodeType         = 14 // u8
	attrResSummary       = 15 // nested
	attrResSummaryEntry  = 16 // nested
	attrResSummaryName   = 17 // string
	attrResSummaryCurr   = 18 // u64
	attrResPID           = 28 // u32, in the reader's pid namespace; absent for the kernel's own objects and for processes that it does not have
	attrResMR            = 40 // nested
	attrResMREntry       = 41 // nested
	attrResMRLen         = 45 // u64
	attrNetdevName       = 51 // string
	attrSysNetnsMode     = 66 // u8: 1 shared, 0 exclusive
	attrProtocol         = 67 // string: ib, roce, iw, opa, usnic
	attrHWCounters       = 80 // nested
	attrHWCounterEntry   = 81 // nested
	attrHWCounterName    = 82 // string
	attrHWCounterValue   = 83 // u64
	attrResCtx           = 86 // nested
	attrResCtxEntry      = 87 // nested
	attrHWCounterDynamic = 95 // u8: 0 or 1 for optional counters, else absent
	attrDevType          = 99 // u8: 1 SMI
	attrParentName       = 100
	attrEventType        = 102 // u8
	attrSysMonitorMode   = 103 // u8: 1 where the kernel tells of events
)
