// SPDX-License-Identifier: GPL-2.0
/*
 * gdrtest_ib: InfiniBand devices without hardware whose ports, counters and
 * failures are set through module parameters.
 *
 * Soft-RoCE covers a healthy Ethernet device. What it lacks is what monitoring
 * must get right on InfiniBand: the counters/ directory, ports that are not
 * active, counters that stick at their width, and files that fail or hang. All
 * of that is decided by the values returned from a few driver calls, so a driver
 * that only returns values is enough; it carries no traffic and has no verbs
 * device.
 *
 * Parameters marked 0644 may be changed at any time under
 * /sys/module/gdrtest_ib/parameters. Faults begin only after registration,
 * since the RDMA core calls the same functions to register a device.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>
#include <rdma/ib_verbs.h>

#define MAX_DEVICES 8

typedef unsigned long long ullong; /* as module_param spells it */
#define NODE_GUID 0x0200000000000100ULL /* the locally administered range */

/* What devices there are: set when the module is loaded. */

static char *name = "gdrtest%d";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "device name; %d is replaced by a number");

static uint count = 1;
module_param(count, uint, 0444);
MODULE_PARM_DESC(count, "number of devices (1..8)");

static uint ports = 1;
module_param(ports, uint, 0444);
MODULE_PARM_DESC(ports, "ports of each device (1..16)");

static char *parent = "";
module_param(parent, charp, 0444);
MODULE_PARM_DESC(parent, "PCI functions the devices sit on, joined by +: 0000:01:00.0+0000:02:00.0");

static bool counters = true;
module_param(counters, bool, 0444);
MODULE_PARM_DESC(counters, "have a counters/ directory (process_mad)");

static bool ext_width = true;
module_param(ext_width, bool, 0444);
MODULE_PARM_DESC(ext_width, "claim 64-bit traffic counters (IB_PMA_CLASS_CAP_EXT_WIDTH)");

static uint hw_level = 1;
module_param(hw_level, uint, 0444);
MODULE_PARM_DESC(hw_level, "hw_counters/: 0 none, 1 per port, 2 per device");

/* Which ports the parameters below apply to; the others stay healthy. */

static int fault_device = -1;
module_param(fault_device, int, 0644);
MODULE_PARM_DESC(fault_device, "number of the only device affected by states and faults, -1 for all");

static uint fault_port;
module_param(fault_port, uint, 0644);
MODULE_PARM_DESC(fault_port, "only port affected by states and faults, 0 for all");

/* Port attributes. */

static uint port_state = IB_PORT_ACTIVE;
module_param(port_state, uint, 0644);
MODULE_PARM_DESC(port_state, "0 NOP, 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER");

static uint phys_state = IB_PORT_PHYS_STATE_LINK_UP;
module_param(phys_state, uint, 0644);
MODULE_PARM_DESC(phys_state, "2 Polling, 3 Disabled, 4 Training, 5 LinkUp, 6 LinkErrorRecovery");

static uint active_speed = IB_SPEED_NDR;
module_param(active_speed, uint, 0644);
MODULE_PARM_DESC(active_speed, "enum ib_port_speed: 32 EDR, 64 HDR, 128 NDR");

static uint active_width = IB_WIDTH_4X;
module_param(active_width, uint, 0644);
MODULE_PARM_DESC(active_width, "enum ib_port_width: 1 1X, 2 4X, 16 2X; 0 makes rate fail");

static ushort lid = 1;
module_param(lid, ushort, 0644);
MODULE_PARM_DESC(lid, "LID of the first port");

static ushort sm_lid = 1;
module_param(sm_lid, ushort, 0644);
MODULE_PARM_DESC(sm_lid, "LID of the subnet manager, 0 for none");

/* Faults. An errno is given as a positive number; 0 is no fault. */

static uint query_port_errno;
module_param(query_port_errno, uint, 0644);
MODULE_PARM_DESC(query_port_errno, "errno of state, phys_state, rate, lid, ...");

static uint counters_errno;
module_param(counters_errno, uint, 0644);
MODULE_PARM_DESC(counters_errno, "non-zero fails the counters; the RDMA core turns any value into EINVAL");

static uint hw_stats_errno;
module_param(hw_stats_errno, uint, 0644);
MODULE_PARM_DESC(hw_stats_errno, "errno of hw_counters/");

static uint query_port_delay_ms;
module_param(query_port_delay_ms, uint, 0644);
MODULE_PARM_DESC(query_port_delay_ms, "time that a query of the port takes");

static uint counters_delay_ms;
module_param(counters_delay_ms, uint, 0644);
MODULE_PARM_DESC(counters_delay_ms, "time that reading one of counters/ takes");

static uint hw_stats_delay_ms;
module_param(hw_stats_delay_ms, uint, 0644);
MODULE_PARM_DESC(hw_stats_delay_ms, "time that a refresh of hw_counters/ takes");

static bool delay_uninterruptible;
module_param(delay_uninterruptible, bool, 0644);
MODULE_PARM_DESC(delay_uninterruptible, "not even SIGKILL ends a delay; setting the delay to 0 does");

/* Error counters, with their width in the MAD. */

static bool saturate;
module_param(saturate, bool, 0644);
MODULE_PARM_DESC(saturate, "all error counters read as all ones in their width");

#define COUNTER(counter, kind) \
	static kind counter;   \
	module_param(counter, kind, 0644)

COUNTER(symbol_error, uint);
COUNTER(link_error_recovery, uint);
COUNTER(link_downed, uint);
COUNTER(port_rcv_errors, uint);
COUNTER(port_rcv_remote_physical_errors, uint);
COUNTER(port_rcv_switch_relay_errors, uint);
COUNTER(port_xmit_discards, uint);
COUNTER(port_xmit_constraint_errors, uint);
COUNTER(port_rcv_constraint_errors, uint);
COUNTER(local_link_integrity_errors, uint);
COUNTER(excessive_buffer_overrun_errors, uint);
COUNTER(VL15_dropped, uint);
COUNTER(port_xmit_wait, uint);

COUNTER(port_xmit_data, ullong); /* in 4-byte words, as the MAD has it */
COUNTER(port_rcv_data, ullong);
COUNTER(port_xmit_packets, ullong);
COUNTER(port_rcv_packets, ullong);
COUNTER(unicast_xmit_packets, ullong);
COUNTER(unicast_rcv_packets, ullong);
COUNTER(multicast_xmit_packets, ullong);
COUNTER(multicast_rcv_packets, ullong);

/* hw_counters, a few of mlx5's, in its order. */

#define HW_COUNTERS(X)              \
	X(rx_write_requests)        \
	X(rx_read_requests)         \
	X(rx_atomic_requests)       \
	X(out_of_buffer)            \
	X(out_of_sequence)          \
	X(packet_seq_err)           \
	X(local_ack_timeout_err)    \
	X(rnr_nak_retry_err)        \
	X(req_cqe_error)            \
	X(req_transport_retries_exceeded)

#define HW_PARAMETER(counter) COUNTER(hw_##counter, ullong);
HW_COUNTERS(HW_PARAMETER)

#define HW_DESCRIPTION(counter) { .name = #counter },
static const struct rdma_stat_desc hw_descriptions[] = { HW_COUNTERS(HW_DESCRIPTION) };

#define HW_SOURCE(counter) &hw_##counter,
static const ullong *const hw_sources[] = { HW_COUNTERS(HW_SOURCE) };

struct gdrtest_device {
	struct ib_device ibdev;
	struct pci_dev *pci;
	int number;
	bool armed; /* registered: faults may begin */
};

static struct gdrtest_device *devices[MAX_DEVICES];

static struct gdrtest_device *to_gdrtest(struct ib_device *ibdev)
{
	return container_of(ibdev, struct gdrtest_device, ibdev);
}

/* affected says whether states and faults apply to a port; port 0 stands for
 * the device itself.
 */
static bool affected(struct ib_device *ibdev, u32 port)
{
	struct gdrtest_device *dev = to_gdrtest(ibdev);

	if (!READ_ONCE(dev->armed))
		return false;
	if (fault_device >= 0 && fault_device != dev->number)
		return false;
	return !fault_port || !port || fault_port == port;
}

/* delay waits for a time that may be changed meanwhile, so that a test can let
 * go what it has made hang.
 */
static int delay(const uint *milliseconds)
{
	unsigned long start = jiffies;

	while (time_before(jiffies, start + msecs_to_jiffies(READ_ONCE(*milliseconds)))) {
		if (READ_ONCE(delay_uninterruptible)) {
			msleep(20);
			continue;
		}
		if (fatal_signal_pending(current))
			return -EINTR;
		schedule_timeout_killable(msecs_to_jiffies(20));
	}
	return 0;
}

/* fault delays and then fails a call as the parameters ask. */
static int fault(struct ib_device *ibdev, u32 port, const uint *milliseconds, const uint *error)
{
	int err;

	if (!affected(ibdev, port))
		return 0;
	err = delay(milliseconds);
	if (err)
		return err;
	return -(int)min_t(uint, READ_ONCE(*error), MAX_ERRNO);
}

static int gdrtest_query_device(struct ib_device *ibdev, struct ib_device_attr *attr,
				struct ib_udata *udata)
{
	memset(attr, 0, sizeof(*attr));
	attr->fw_ver = 28ULL << 32 | 41 << 16 | 1000;
	attr->sys_image_guid = ibdev->node_guid;
	attr->vendor_id = 0x02c9;
	attr->vendor_part_id = 4129;
	attr->max_mr_size = ~0ULL;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_pkeys = 1;
	return 0;
}

static void gdrtest_fw_version(struct ib_device *ibdev, char *str)
{
	strscpy(str, "28.41.1000", IB_FW_VERSION_NAME_MAX);
}

static int gdrtest_query_port(struct ib_device *ibdev, u32 port, struct ib_port_attr *attr)
{
	bool set = affected(ibdev, port);
	int err = fault(ibdev, port, &query_port_delay_ms, &query_port_errno);

	if (err)
		return err;
	attr->state = set ? port_state : IB_PORT_ACTIVE;
	attr->phys_state = set ? phys_state : IB_PORT_PHYS_STATE_LINK_UP;
	attr->active_speed = set ? active_speed : IB_SPEED_NDR;
	attr->active_width = set ? active_width : IB_WIDTH_4X;
	attr->lid = lid + port - 1;
	attr->sm_lid = sm_lid;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->max_msg_sz = 1U << 30;
	attr->gid_tbl_len = 1;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 4;
	attr->port_cap_flags = IB_PORT_EXTENDED_SPEEDS_SUP | IB_PORT_SYS_IMAGE_GUID_SUP;
	return 0;
}

static int gdrtest_port_immutable(struct ib_device *ibdev, u32 port,
				  struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	immutable->pkey_tbl_len = 1;
	immutable->gid_tbl_len = 1;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static int gdrtest_query_gid(struct ib_device *ibdev, u32 port, int index, union ib_gid *gid)
{
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
	gid->global.interface_id = cpu_to_be64(be64_to_cpu(ibdev->node_guid) + port);
	return 0;
}

static int gdrtest_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

/* clip returns an error counter as its width can hold it. Real ones stick at
 * all ones, so larger parameters do as well.
 */
static u32 clip(u32 value, int bits, bool all_ones)
{
	u32 max = GENMASK(bits - 1, 0);

	return all_ones ? max : min(value, max);
}

static void fill_counters(struct ib_pma_portcounters *out, bool s)
{
	out->symbol_error_counter = cpu_to_be16(clip(symbol_error, 16, s));
	out->link_error_recovery_counter = clip(link_error_recovery, 8, s);
	out->link_downed_counter = clip(link_downed, 8, s);
	out->port_rcv_errors = cpu_to_be16(clip(port_rcv_errors, 16, s));
	out->port_rcv_remphys_errors = cpu_to_be16(clip(port_rcv_remote_physical_errors, 16, s));
	out->port_rcv_switch_relay_errors = cpu_to_be16(clip(port_rcv_switch_relay_errors, 16, s));
	out->port_xmit_discards = cpu_to_be16(clip(port_xmit_discards, 16, s));
	out->port_xmit_constraint_errors = clip(port_xmit_constraint_errors, 8, s);
	out->port_rcv_constraint_errors = clip(port_rcv_constraint_errors, 8, s);
	out->link_overrun_errors = clip(local_link_integrity_errors, 4, s) << 4 |
				   clip(excessive_buffer_overrun_errors, 4, s);
	out->vl15_dropped = cpu_to_be16(clip(VL15_dropped, 16, s));
	out->port_xmit_wait = cpu_to_be32(clip(port_xmit_wait, 32, s));
	out->port_xmit_data = cpu_to_be32(min_t(u64, port_xmit_data, U32_MAX));
	out->port_rcv_data = cpu_to_be32(min_t(u64, port_rcv_data, U32_MAX));
	out->port_xmit_packets = cpu_to_be32(min_t(u64, port_xmit_packets, U32_MAX));
	out->port_rcv_packets = cpu_to_be32(min_t(u64, port_rcv_packets, U32_MAX));
}

static void fill_counters_ext(struct ib_pma_portcounters_ext *out)
{
	out->port_xmit_data = cpu_to_be64(port_xmit_data);
	out->port_rcv_data = cpu_to_be64(port_rcv_data);
	out->port_xmit_packets = cpu_to_be64(port_xmit_packets);
	out->port_rcv_packets = cpu_to_be64(port_rcv_packets);
	out->port_unicast_xmit_packets = cpu_to_be64(unicast_xmit_packets);
	out->port_unicast_rcv_packets = cpu_to_be64(unicast_rcv_packets);
	out->port_multicast_xmit_packets = cpu_to_be64(multicast_xmit_packets);
	out->port_multicast_rcv_packets = cpu_to_be64(multicast_rcv_packets);
}

/* The performance data of a MAD begin 64 bytes in; the header takes 24. */
#define PMA_DATA_OFFSET 40

static int gdrtest_process_mad(struct ib_device *ibdev, int flags, u32 port,
			       const struct ib_wc *wc, const struct ib_grh *grh,
			       const struct ib_mad *in, struct ib_mad *out,
			       size_t *out_size, u16 *out_pkey_index)
{
	void *data = out->data + PMA_DATA_OFFSET;
	struct ib_class_port_info *info = data;

	if (in->mad_hdr.mgmt_class != IB_MGMT_CLASS_PERF_MGMT)
		return IB_MAD_RESULT_FAILURE;
	if (fault(ibdev, port, &counters_delay_ms, &counters_errno))
		return IB_MAD_RESULT_FAILURE;
	switch (in->mad_hdr.attr_id) {
	case IB_PMA_CLASS_PORT_INFO:
		info->capability_mask = ext_width ? IB_PMA_CLASS_CAP_EXT_WIDTH : 0;
		break;
	case IB_PMA_PORT_COUNTERS:
		fill_counters(data, saturate && affected(ibdev, port));
		break;
	case IB_PMA_PORT_COUNTERS_EXT:
		fill_counters_ext(data);
		break;
	default:
		return IB_MAD_RESULT_FAILURE;
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}

static struct rdma_hw_stats *alloc_stats(void)
{
	return rdma_alloc_hw_stats_struct(hw_descriptions, ARRAY_SIZE(hw_descriptions),
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static struct rdma_hw_stats *gdrtest_alloc_port_stats(struct ib_device *ibdev, u32 port)
{
	return alloc_stats();
}

static struct rdma_hw_stats *gdrtest_alloc_device_stats(struct ib_device *ibdev)
{
	return alloc_stats();
}

static int gdrtest_get_hw_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
				u32 port, int index)
{
	int err = fault(ibdev, port, &hw_stats_delay_ms, &hw_stats_errno);
	int i;

	if (err)
		return err;
	for (i = 0; i < ARRAY_SIZE(hw_sources); i++)
		stats->value[i] = *hw_sources[i];
	return ARRAY_SIZE(hw_sources);
}

static ssize_t hca_type_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "GDRTEST\n");
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t hw_rev_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "0\n");
}
static DEVICE_ATTR_RO(hw_rev);

static ssize_t board_id_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "GDR0000000001\n");
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *gdrtest_attributes[] = {
	&dev_attr_hca_type.attr,
	&dev_attr_hw_rev.attr,
	&dev_attr_board_id.attr,
	NULL,
};

static const struct attribute_group gdrtest_group = { .attrs = gdrtest_attributes };

static const struct ib_device_ops gdrtest_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.device_group = &gdrtest_group,
	.query_device = gdrtest_query_device,
	.get_dev_fw_str = gdrtest_fw_version,
	.query_port = gdrtest_query_port,
	.get_port_immutable = gdrtest_port_immutable,
	.query_gid = gdrtest_query_gid,
	.query_pkey = gdrtest_query_pkey,
};

/* A driver has counters or hw_counters exactly if it has these calls. */

static const struct ib_device_ops counters_ops = { .process_mad = gdrtest_process_mad };

static const struct ib_device_ops port_stats_ops = {
	.alloc_hw_port_stats = gdrtest_alloc_port_stats,
	.get_hw_stats = gdrtest_get_hw_stats,
};

static const struct ib_device_ops device_stats_ops = {
	.alloc_hw_device_stats = gdrtest_alloc_device_stats,
	.get_hw_stats = gdrtest_get_hw_stats,
};

static void set_ops(struct ib_device *ibdev)
{
	ib_set_device_ops(ibdev, &gdrtest_ops);
	if (counters)
		ib_set_device_ops(ibdev, &counters_ops);
	if (hw_level == 1)
		ib_set_device_ops(ibdev, &port_stats_ops);
	if (hw_level == 2)
		ib_set_device_ops(ibdev, &device_stats_ops);
}

/* find_parent looks up the PCI function named at position number of the
 * parameter. None is no error: the device is then a virtual one.
 */
static int find_parent(int number, struct pci_dev **found)
{
	uint domain, bus, slot, function;
	const char *text = parent;

	while (number-- && text) {
		text = strchr(text, '+');
		if (text)
			text++;
	}
	if (!text || !*text)
		return 0;
	if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		return -EINVAL;
	*found = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	return *found ? 0 : -ENODEV;
}

static void remove_device(struct gdrtest_device *dev)
{
	struct pci_dev *pci = dev->pci;

	if (dev->armed)
		ib_unregister_device(&dev->ibdev);
	ib_dealloc_device(&dev->ibdev);
	pci_dev_put(pci);
}

static int register_device(struct gdrtest_device *dev)
{
	int err = find_parent(dev->number, &dev->pci);

	if (err) {
		pr_err("no PCI function for device %d in '%s'\n", dev->number, parent);
		return err;
	}
	if (dev->pci)
		dev->ibdev.dev.parent = &dev->pci->dev;
	dev->ibdev.node_type = RDMA_NODE_IB_CA;
	dev->ibdev.node_guid = cpu_to_be64(NODE_GUID + (u64)dev->number * 256);
	dev->ibdev.phys_port_cnt = ports;
	dev->ibdev.num_comp_vectors = 1;
	snprintf(dev->ibdev.node_desc, IB_DEVICE_NODE_DESC_MAX, "gdrtest %d", dev->number);
	set_ops(&dev->ibdev);
	err = ib_register_device(&dev->ibdev, name, NULL);
	if (err)
		pr_err("cannot register device %d as '%s': %d\n", dev->number, name, err);
	else
		WRITE_ONCE(dev->armed, true);
	return err;
}

static int add_device(int number)
{
	struct gdrtest_device *dev = ib_alloc_device(gdrtest_device, ibdev);
	int err;

	if (!dev)
		return -ENOMEM;
	dev->number = number;
	err = register_device(dev);
	if (err) {
		remove_device(dev);
		return err;
	}
	devices[number] = dev;
	return 0;
}

static void remove_all(void)
{
	int i;

	for (i = 0; i < MAX_DEVICES; i++) {
		if (devices[i])
			remove_device(devices[i]);
		devices[i] = NULL;
	}
}

static int __init gdrtest_init(void)
{
	int i, err;

	if (!count || count > MAX_DEVICES || !ports || ports > 16 || hw_level > 2)
		return -EINVAL;
	for (i = 0; i < count; i++) {
		err = add_device(i);
		if (err) {
			remove_all();
			return err;
		}
	}
	return 0;
}

static void __exit gdrtest_exit(void)
{
	remove_all();
}

module_init(gdrtest_init);
module_exit(gdrtest_exit);
MODULE_DESCRIPTION("InfiniBand devices with adjustable ports, counters and faults, for tests");
MODULE_LICENSE("GPL");
