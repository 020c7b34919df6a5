// SPDX-License-Identifier: GPL-2.0
/*
 * nvidia_peermem: a stand-in for NVIDIA's module of that name.
 *
 * It shows what monitoring looks at: the module, its parameters, its reference
 * count, and the directories that an RDMA stack with peer memory makes for each
 * client under /sys/kernel/mm/memory_peers. It registers no memory.
 *
 * The real module needs a GPU and an RDMA stack other than the kernel's own.
 */
#define pr_fmt(fmt) "nvidia-peermem " fmt

#include <linux/kernfs.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sysfs.h>

#define VERSION "580.95.05"

typedef unsigned long long ullong; /* as module_param spells it */

/* The real module's parameters, read-only as there. */

static int peerdirect_support;
module_param(peerdirect_support, int, 0444);
MODULE_PARM_DESC(peerdirect_support, "0 default, 1 legacy: registers nv_mem and nv_mem_nc");

static int persistent_api_support = 1;
module_param(persistent_api_support, int, 0444);
MODULE_PARM_DESC(persistent_api_support, "1 default, 0 legacy: registers nv_mem and nv_mem_nc");

/* The stand-in's own. */

static bool register_client = true;
module_param(register_client, bool, 0444);
MODULE_PARM_DESC(register_client, "0: no memory_peers, as in kernels whose RDMA stack has none");

static bool fail_init;
module_param(fail_init, bool, 0444);
MODULE_PARM_DESC(fail_init, "refuse to load with EINVAL, as when built without peer memory symbols");

#define STATISTICS(X)       \
	X(num_alloc_mrs)    \
	X(num_dealloc_mrs)  \
	X(num_reg_pages)    \
	X(num_dereg_pages)  \
	X(num_reg_bytes)    \
	X(num_dereg_bytes)  \
	X(num_free_callbacks)

#define PARAMETER(statistic)      \
	static ullong statistic;  \
	module_param(statistic, ullong, 0644);
STATISTICS(PARAMETER)

/* Each live registration of the real module holds a reference to it. */

static uint live_mrs;
static DEFINE_MUTEX(live_mrs_lock);

static int set_live_mrs(const char *text, const struct kernel_param *kp)
{
	uint wanted;
	int err = kstrtouint(text, 0, &wanted);

	if (err)
		return err;
	if (wanted > 100000)
		return -ERANGE;
	mutex_lock(&live_mrs_lock);
	for (; live_mrs < wanted; live_mrs++)
		__module_get(THIS_MODULE);
	for (; live_mrs > wanted; live_mrs--)
		module_put(THIS_MODULE);
	mutex_unlock(&live_mrs_lock);
	return 0;
}

static const struct kernel_param_ops live_mrs_ops = { .set = set_live_mrs, .get = param_get_uint };
module_param_cb(live_mrs, &live_mrs_ops, &live_mrs, 0644);
MODULE_PARM_DESC(live_mrs, "references held to the module; it cannot be removed before this is 0 again");

static ssize_t version_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", VERSION);
}
static struct kobj_attribute version_attribute = __ATTR_RO(version);

#define SHOW(statistic)                                                                          \
	static ssize_t statistic##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf) \
	{                                                                                        \
		return sysfs_emit(buf, "%llu\n", statistic);                                     \
	}                                                                                        \
	static struct kobj_attribute statistic##_attribute = __ATTR_RO(statistic);
STATISTICS(SHOW)

#define ATTRIBUTE(statistic) &statistic##_attribute.attr,
static struct attribute *client_attributes[] = {
	&version_attribute.attr,
	STATISTICS(ATTRIBUTE)
	NULL,
};

static const struct attribute_group client_group = { .attrs = client_attributes };

static struct kobject *memory_peers;
static struct kobject *clients[2];

static void remove_clients(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(clients); i++)
		kobject_put(clients[i]); /* NULL is fine */
	kobject_put(memory_peers);
}

static struct kobject *add_client(const char *name)
{
	struct kobject *client = kobject_create_and_add(name, memory_peers);

	if (client && sysfs_create_group(client, &client_group)) {
		kobject_put(client);
		client = NULL;
	}
	return client;
}

/* add_memory_peers makes the directory in /sys/kernel/mm. Newer kernels do not
 * export mm_kobj; a directory's node leads to its object.
 */
static struct kobject *add_memory_peers(void)
{
	struct kernfs_node *mm = kernfs_find_and_get(kernel_kobj->sd, "mm");
	struct kobject *made;

	if (!mm)
		return NULL;
	made = kobject_create_and_add("memory_peers", mm->priv);
	kernfs_put(mm);
	return made;
}

static int add_clients(void)
{
	bool legacy = peerdirect_support == 1 || !persistent_api_support;

	memory_peers = add_memory_peers();
	if (!memory_peers)
		return -ENOMEM;
	clients[0] = add_client("nv_mem");
	if (legacy)
		clients[1] = add_client("nv_mem_nc");
	if (clients[0] && (!legacy || clients[1]))
		return 0;
	remove_clients();
	return -ENOMEM;
}

static int __init peermem_init(void)
{
	if (fail_init)
		return -EINVAL;
	if (peerdirect_support != 0 && peerdirect_support != 1) {
		pr_err("%s:%d ERROR invalid peerdirect_support param value %d\n", __func__,
		       __LINE__, peerdirect_support);
		return -EINVAL;
	}
	if (persistent_api_support != 0 && persistent_api_support != 1) {
		pr_err("%s:%d ERROR invalid persistent_api_support param value %d\n", __func__,
		       __LINE__, persistent_api_support);
		return -EINVAL;
	}
	return register_client ? add_clients() : 0;
}

static void __exit peermem_exit(void)
{
	remove_clients();
}

module_init(peermem_init);
module_exit(peermem_exit);
MODULE_DESCRIPTION("Stand-in for NVIDIA's peer memory module, for tests");
MODULE_LICENSE("GPL");
MODULE_VERSION(VERSION);
