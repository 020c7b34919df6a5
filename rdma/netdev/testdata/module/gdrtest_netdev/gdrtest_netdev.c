// SPDX-License-Identifier: GPL-2.0
/*
 * A network interface with what no emulated NIC has: ethtool statistics under
 * mlx5's names, DCB with priority flow control, and devlink health reporters.
 * It carries no traffic. Its driver is called mlx5_core, which the real one
 * must not be loaded beside.
 *
 *   pfc      PFC-enabled priorities, one per bit, at any time; rx_prioN_pause
 *            and the like exist for these alone, as with mlx5
 *   step     added to every statistic, at any time
 *   errors   written to: reports that many errors to the health reporter fw,
 *            which recovers
 *   fatal    written to: reports an error to fw_fatal, which does not
 */
#include <linux/dcbnl.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/platform_device.h>
#include <net/dcbnl.h>
#include <net/devlink.h>

static uint pfc = 1 << 3;
module_param(pfc, uint, 0644);
static ulong step;
module_param(step, ulong, 0644);

static struct net_device *netdev;
static struct platform_device *device;
static struct devlink *devlink;
static struct devlink_health_reporter *fw, *fw_fatal;

static const char always[][ETH_GSTRING_LEN] = {
	"rx_packets", "rx_out_of_buffer", "rx_steer_missed_packets",
	"rx_vport_rdma_unicast_bytes", "tx_vport_rdma_unicast_bytes",
	"vport_loopback_bytes", "rx_crc_errors_phy", "tx_bytes_phy",
	"rx_bytes_phy", "rx_symbol_err_phy", "rx_discards_phy",
	"tx_discards_phy", "link_down_events_phy", "rx_pcs_symbol_err_phy",
	"rx_corrected_bits_phy", "rx_err_lane_0_phy", "rx_err_lane_1_phy",
	"rx_pci_signal_integrity", "outbound_pci_stalled_rd_events",
	"tx_pause_storm_warning_events ", "module_high_temp",
	"rx0_packets", "rx1_packets",
};

static const char *const paused[] = {
	"rx_prio%d_pause", "rx_prio%d_pause_duration", "tx_prio%d_pause",
	"tx_prio%d_pause_duration", "rx_prio%d_pause_transition",
};

static int sset_count(struct net_device *dev, int set)
{
	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return ARRAY_SIZE(always) + hweight8(pfc) * ARRAY_SIZE(paused);
}

static void strings(struct net_device *dev, u32 set, u8 *data)
{
	int prio, i;

	memcpy(data, always, sizeof(always));
	data += sizeof(always);
	for (prio = 0; prio < 8; prio++)
		for (i = 0; i < ARRAY_SIZE(paused) && (pfc & (1 << prio)); i++) {
			snprintf(data, ETH_GSTRING_LEN, paused[i], prio);
			data += ETH_GSTRING_LEN;
		}
}

static void stats(struct net_device *dev, struct ethtool_stats *s, u64 *data)
{
	int i;

	for (i = 0; i < sset_count(dev, ETH_SS_STATS); i++)
		data[i] = (1ULL << 33) * (i + 1) + step;
}

static const struct ethtool_ops ethtool_ops = {
	.get_sset_count = sset_count,
	.get_strings = strings,
	.get_ethtool_stats = stats,
};

static int getpfc(struct net_device *dev, struct ieee_pfc *p)
{
	p->pfc_cap = 8;
	p->pfc_en = pfc;
	return 0;
}

static u8 getdcbx(struct net_device *dev)
{
	return DCB_CAP_DCBX_HOST | DCB_CAP_DCBX_VER_IEEE;
}

static const struct dcbnl_rtnl_ops dcb_ops = {
	.ieee_getpfc = getpfc,
	.getdcbx = getdcbx,
};

static netdev_tx_t xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops netdev_ops = {
	.ndo_start_xmit = xmit,
	.ndo_set_mac_address = eth_mac_addr,
};

static int dump(struct devlink_health_reporter *r, struct devlink_fmsg *m,
		void *context, struct netlink_ext_ack *extack)
{
	return 0;
}

static int recover(struct devlink_health_reporter *r, void *context,
		   struct netlink_ext_ack *extack)
{
	return 0;
}

static const struct devlink_health_reporter_ops fw_ops = {
	.name = "fw", .dump = dump, .recover = recover,
};
static const struct devlink_health_reporter_ops fw_fatal_ops = {
	.name = "fw_fatal",
};

static int report(const char *value, const struct kernel_param *param)
{
	uint n;
	int err = kstrtouint(value, 0, &n);

	for (; !err && n; n--)
		devlink_health_report(fw, "test", NULL);
	return err;
}

static int report_fatal(const char *value, const struct kernel_param *param)
{
	devlink_health_report(fw_fatal, "test", NULL);
	return 0;
}

static const struct kernel_param_ops report_ops = { .set = report };
module_param_cb(errors, &report_ops, NULL, 0200);
static const struct kernel_param_ops fatal_ops = { .set = report_fatal };
module_param_cb(fatal, &fatal_ops, NULL, 0200);

static int probe(struct platform_device *p)
{
	return 0;
}

static struct platform_driver driver = {
	.probe = probe,
	.driver = { .name = "mlx5_core" },
};

static const struct devlink_ops devlink_ops;

static int __init start(void)
{
	int err = platform_driver_register(&driver);

	if (err)
		return err;
	device = platform_device_register_simple("mlx5_core", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(device)) {
		err = PTR_ERR(device);
		goto no_device;
	}
	err = -ENOMEM;
	devlink = devlink_alloc(&devlink_ops, 0, &device->dev);
	if (!devlink)
		goto no_devlink;
	fw = devlink_health_reporter_create(devlink, &fw_ops, 0, NULL);
	fw_fatal = devlink_health_reporter_create(devlink, &fw_fatal_ops, 0, NULL);
	if (IS_ERR(fw) || IS_ERR(fw_fatal))
		goto no_netdev;
	netdev = alloc_etherdev(0);
	if (!netdev)
		goto no_netdev;
	strscpy(netdev->name, "pfc%d", IFNAMSIZ);
	netdev->netdev_ops = &netdev_ops;
	netdev->ethtool_ops = &ethtool_ops;
	netdev->dcbnl_ops = &dcb_ops;
	SET_NETDEV_DEV(netdev, &device->dev);
	eth_hw_addr_random(netdev);
	err = register_netdev(netdev);
	if (err)
		goto no_register;
	devlink_register(devlink);
	return 0;

no_register:
	free_netdev(netdev);
no_netdev:
	if (!IS_ERR_OR_NULL(fw))
		devlink_health_reporter_destroy(fw);
	if (!IS_ERR_OR_NULL(fw_fatal))
		devlink_health_reporter_destroy(fw_fatal);
	devlink_free(devlink);
no_devlink:
	platform_device_unregister(device);
no_device:
	platform_driver_unregister(&driver);
	return err;
}

static void __exit stop(void)
{
	devlink_unregister(devlink);
	unregister_netdev(netdev);
	free_netdev(netdev);
	devlink_health_reporter_destroy(fw);
	devlink_health_reporter_destroy(fw_fatal);
	devlink_free(devlink);
	platform_device_unregister(device);
	platform_driver_unregister(&driver);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("network interface with PFC and devlink health for tests");
MODULE_LICENSE("GPL");
