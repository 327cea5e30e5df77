// SPDX-License-Identifier: MIT OR GPL-2.0
/* The device.  Each open has its own place in the ring; nothing outlives the open but the policy and who is exempt. */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid_namespace.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "uvm_mpsd_device.h"
#include "uvm_mpsd_policy.h"
#include "uvm_mpsd_ring.h"
#include "uvm_mpsd_selftest.h"

struct reader {
	struct mutex lock; /* one thread at a time reads, so that what it could not be given is there for the next */
	u64 place;	   /* the sequence of the record read last; written under `lock`, read without it */
};

/* Context for all of these: the process that has it open; they may sleep. */

static int mpsd_open(struct inode *inode, struct file *file)
{
	struct reader *reader;

	/* Records contain the pids of the first namespace: in another one those numbers mean other processes, or none. */
	if (task_active_pid_ns(current) != &init_pid_ns)
		return -EXDEV;
	reader = kmalloc(sizeof(*reader), GFP_KERNEL);
	if (!reader)
		return -ENOMEM;
	mutex_init(&reader->lock);
	reader->place = mpsd_ring_newest();
	file->private_data = reader;
	return stream_open(inode, file);
}

static int mpsd_close(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

/* `place` is read here without the reader's lock: a reader that lost the race tries again. */
static bool has_record(const struct reader *reader)
{
	return READ_ONCE(reader->place) != mpsd_ring_newest();
}

/* The bytes of the records that fit into `bytes`; 0: none waits; -EFAULT: the first is still there for the next read. */
static ssize_t take_records(struct reader *reader, char __user *to, size_t bytes)
{
	struct mpsd_fault_record record;
	ssize_t done = 0;
	u64 place;

	while (bytes - done >= sizeof(record)) {
		place = reader->place;
		if (!mpsd_ring_take(&place, &record))
			break;
		if (copy_to_user(to + done, &record, sizeof(record)))
			return done ? done : -EFAULT;
		WRITE_ONCE(reader->place, place);
		done += sizeof(record);
	}
	return done;
}

static ssize_t mpsd_read(struct file *file, char __user *to, size_t bytes, loff_t *offset)
{
	struct reader *reader = file->private_data;
	ssize_t done;

	if (bytes < sizeof(struct mpsd_fault_record))
		return -EINVAL;
	for (;;) {
		if (mutex_lock_interruptible(&reader->lock))
			return -ERESTARTSYS;
		done = take_records(reader, to, bytes);
		mutex_unlock(&reader->lock);
		if (done)
			return done;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(mpsd_ring_readers, has_record(reader)))
			return -ERESTARTSYS;
	}
}

static __poll_t mpsd_poll(struct file *file, poll_table *wait)
{
	poll_wait(file, &mpsd_ring_readers, wait);
	return has_record(file->private_data) ? EPOLLIN | EPOLLRDNORM : 0;
}

static long tell(void __user *to)
{
	struct mpsd_fault_info info = {
		.major = MPSD_FAULT_MAJOR,
		.minor = MPSD_FAULT_MINOR,
		.record_bytes = sizeof(struct mpsd_fault_record),
		.ring_records = MPSD_RING_RECORDS,
		.sequence = mpsd_ring_newest(),
		.driver = NV_VERSION_STRING,
	};

	return copy_to_user(to, &info, sizeof(info)) ? -EFAULT : 0;
}

static long change_policy(const void __user *from)
{
	struct mpsd_fault_policy asked;

	return copy_from_user(&asked, from, sizeof(asked)) ? -EFAULT : mpsd_policy_set(&asked);
}

/* 0, or -errno.  Copies what EXEMPT and INJECT name. */
static long get_target(const void __user *from, struct mpsd_fault_target *target)
{
	if (copy_from_user(target, from, sizeof(*target)))
		return -EFAULT;
	return target->flags || target->tgid < 0 ? -EINVAL : 0;
}

static long exempt(const void __user *from)
{
	struct mpsd_fault_target target;
	long failure = get_target(from, &target);

	return failure ? failure : mpsd_policy_exempt(target.tgid);
}

static long inject(const void __user *from)
{
	struct mpsd_fault_record record = {
		.kind = MPSD_FAULT_KIND_FAULT,
		.flags = MPSD_FAULT_INJECTED,
	};
	struct mpsd_fault_target target;
	long failure = get_target(from, &target);

	if (failure)
		return failure;
	record.tgid = target.tgid;
	record.address = target.address;
	mpsd_ring_push(&record);
	return 0;
}

/* The policy concerns all users: an open descriptor alone, which may have been passed on, is not enough. */
static long may_change(const struct file *file)
{
	if (!(file->f_mode & FMODE_WRITE))
		return -EBADF;
	return capable(CAP_SYS_ADMIN) ? 0 : -EPERM;
}

static long mpsd_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *user = (void __user *)argument;

	switch (command) {
	case MPSD_FAULT_INFO:
		return tell(user);
	case MPSD_FAULT_POLICY:
		return may_change(file) ?: change_policy(user);
	case MPSD_FAULT_EXEMPT:
		return may_change(file) ?: exempt(user);
	case MPSD_FAULT_INJECT:
		return may_change(file) ?: inject(user);
	default:
		return mpsd_selftest_ioctl(command, user);
	}
}

static const struct file_operations mpsd_operations = {
	.owner = THIS_MODULE,
	.open = mpsd_open,
	.release = mpsd_close,
	.read = mpsd_read,
	.poll = mpsd_poll,
	.unlocked_ioctl = mpsd_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice mpsd_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = MPSD_FAULT_NAME,
	.fops = &mpsd_operations,
	.mode = 0600,
};

int mpsd_device_open(void)
{
	return misc_register(&mpsd_device);
}

void mpsd_device_close(void)
{
	misc_deregister(&mpsd_device);
}
