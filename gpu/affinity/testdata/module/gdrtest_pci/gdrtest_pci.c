// SPDX-License-Identifier: GPL-2.0
/*
 * What emulated PCI functions lack.
 *
 * A driver called nvidia, which takes any function that is given to it through
 * driver_override and does nothing with it. An idle one sleeps in D3hot if its
 * power/control says auto.
 *
 *   config   written to, one at a time, and holding for everybody:
 *            "0000:44:00.0 e8 3c58"  configuration space reads as 58 at offset
 *                                    0xe8 and 3c at 0xe9: QEMU's links are all
 *                                    2.5 GT/s x1, its payload sizes fixed
 *            "0000:44:00.0"          all of it reads as ones, as that of a
 *                                    function that has fallen off the bus
 *            ""                      everything is as it was
 */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/pm_runtime.h>

#define EVERYWHERE -1

static struct {
	struct pci_bus *bus;
	unsigned int devfn;
	int offset; /* or EVERYWHERE */
	u8 value;
} bytes[256];

static struct {
	struct pci_bus *bus;
	struct pci_ops *ops; /* the bus's own */
} buses[32];

static int byte_count, bus_count;
static DEFINE_RAW_SPINLOCK(lock); /* of all the above */

static struct pci_ops *own_ops(struct pci_bus *bus)
{
	int i;

	for (i = 0; i < bus_count; i++)
		if (buses[i].bus == bus)
			return buses[i].ops;
	return NULL;
}

/* The last value that was set for an offset holds. */
static u32 made_up(struct pci_bus *bus, unsigned int devfn, int where,
		   int size, u32 val)
{
	int i, shift;

	for (i = 0; i < byte_count; i++) {
		if (bytes[i].bus != bus || bytes[i].devfn != devfn)
			continue;
		if (bytes[i].offset == EVERYWHERE)
			return U32_MAX >> 8 * (4 - size);
		if (bytes[i].offset < where || bytes[i].offset >= where + size)
			continue;
		shift = 8 * (bytes[i].offset - where);
		val = (val & ~(0xffU << shift)) | (u32)bytes[i].value << shift;
	}
	return val;
}

static int gdrtest_read(struct pci_bus *bus, unsigned int devfn, int where,
			int size, u32 *val)
{
	unsigned long flags;
	struct pci_ops *ops;
	int err;

	raw_spin_lock_irqsave(&lock, flags);
	ops = own_ops(bus);
	raw_spin_unlock_irqrestore(&lock, flags);
	err = ops->read(bus, devfn, where, size, val);
	raw_spin_lock_irqsave(&lock, flags);
	*val = made_up(bus, devfn, where, size, *val);
	raw_spin_unlock_irqrestore(&lock, flags);
	return err;
}

static int gdrtest_write(struct pci_bus *bus, unsigned int devfn, int where,
			 int size, u32 val)
{
	unsigned long flags;
	struct pci_ops *ops;

	raw_spin_lock_irqsave(&lock, flags);
	ops = own_ops(bus);
	raw_spin_unlock_irqrestore(&lock, flags);
	return ops->write(bus, devfn, where, size, val);
}

static struct pci_ops gdrtest_ops = {
	.read = gdrtest_read,
	.write = gdrtest_write,
};

/* The kernel sets one parameter at a time, so that nothing comes between
 * looking and adding.
 */
static int wrap(struct pci_bus *bus)
{
	unsigned long flags;

	if (own_ops(bus))
		return 0;
	/* A bus with more than read and write would need more here. */
	if (bus->ops->map_bus || bus_count == ARRAY_SIZE(buses))
		return -ENOSPC;
	raw_spin_lock_irqsave(&lock, flags);
	buses[bus_count].bus = bus;
	buses[bus_count++].ops = bus->ops;
	raw_spin_unlock_irqrestore(&lock, flags);
	pci_bus_set_ops(bus, &gdrtest_ops);
	return 0;
}

static void add(struct pci_bus *bus, unsigned int devfn, int offset, u8 value)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&lock, flags);
	bytes[byte_count].bus = bus;
	bytes[byte_count].devfn = devfn;
	bytes[byte_count].offset = offset;
	bytes[byte_count++].value = value;
	raw_spin_unlock_irqrestore(&lock, flags);
}

static void forget(void)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&lock, flags);
	byte_count = 0;
	raw_spin_unlock_irqrestore(&lock, flags);
}

static int set_config(const char *text, const struct kernel_param *kp)
{
	unsigned int domain, nr, slot, function, offset, value;
	int i, err, fields, size, digits = 0;
	struct pci_bus *bus;

	fields = sscanf(text, "%x:%x:%x.%x %x %n%x", &domain, &nr, &slot,
			&function, &offset, &digits, &value);
	if (fields < 4) {
		forget();
		return *text == '\n' || !*text ? 0 : -EINVAL;
	}
	size = fields == 6 ? strcspn(text + digits, "\n") / 2 : 1;
	if (fields == 5 || size < 1 || size > 4 || slot > 31 || function > 7)
		return -EINVAL;
	if (byte_count + size > ARRAY_SIZE(bytes))
		return -ENOSPC;
	bus = pci_find_bus(domain, nr);
	if (!bus)
		return -ENODEV;
	err = wrap(bus);
	if (err)
		return err;
	if (fields == 4)
		add(bus, PCI_DEVFN(slot, function), EVERYWHERE, 0);
	for (i = 0; fields == 6 && i < size; i++)
		add(bus, PCI_DEVFN(slot, function), offset + i, value >> 8 * i);
	return 0;
}

static const struct kernel_param_ops config_ops = { .set = set_config };
module_param_cb(config, &config_ops, NULL, 0200);

static int gdrtest_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	pm_runtime_put_noidle(&pdev->dev);
	return 0;
}

static void gdrtest_remove(struct pci_dev *pdev)
{
	pm_runtime_get_noresume(&pdev->dev);
}

static int __maybe_unused gdrtest_runtime(struct device *dev)
{
	return 0;
}

static const struct dev_pm_ops gdrtest_pm = {
	SET_RUNTIME_PM_OPS(gdrtest_runtime, gdrtest_runtime, NULL)
};

static struct pci_driver gdrtest_driver = {
	.name = "nvidia",
	.probe = gdrtest_probe,
	.remove = gdrtest_remove,
	.driver.pm = &gdrtest_pm,
};

static int __init gdrtest_init(void)
{
	return pci_register_driver(&gdrtest_driver);
}

static void __exit gdrtest_exit(void)
{
	int i;

	pci_unregister_driver(&gdrtest_driver);
	for (i = 0; i < bus_count; i++)
		pci_bus_set_ops(buses[i].bus, buses[i].ops);
}

module_init(gdrtest_init);
module_exit(gdrtest_exit);
MODULE_DESCRIPTION("PCI driver called nvidia, and configuration space made up, for tests");
MODULE_LICENSE("GPL");
