# SPDX-License-Identifier: MIT OR GPL-2.0
# shellcheck shell=bash
# What a tree of driver sources is: where nvidia-uvm lies in it, which version, which flavour.  Sourced by the commands here.

# Driver branches that `build` has built.  Another may do other things between the hooks: README.md, "Another driver version".
readonly TRIED_BRANCHES="535 545 550 555 560 565 570 575 580 590 595"

fail() {
	echo "${0##*/}: $*" >&2
	exit 1
}

# The folder that holds Kbuild and nvidia-uvm/: of a DKMS tree, of NVIDIA's repository, of an unpacked .run file.
tree_modules() {
	local tree=$1 folder
	[ -d "$tree" ] || fail "$tree: no such folder"
	for folder in "$tree" "$tree/kernel-open" "$tree/modules/nvidia-open-kernel"; do
		if [ -f "$folder/Kbuild" ] && [ -d "$folder/nvidia-uvm" ] && [ -d "$folder/nvidia" ]; then
			(cd "$folder" && pwd)
			return
		fi
	done
	[ -f "$tree/nvidia-open-kernel.tar.xz" ] && fail "$tree: unpack nvidia-open-kernel.tar.xz and name what is in it"
	[ -d "$tree/kernel/nvidia-uvm" ] && fail "$tree: holds the proprietary flavour alone; take the open one (kernel-open)"
	fail "$tree: neither /usr/src/nvidia-VERSION nor NVIDIA's open-gpu-kernel-modules: no Kbuild beside nvidia/ and nvidia-uvm/"
}

tree_version() {
	local version
	version=$(sed -n 's/.*NV_VERSION_STRING=\\"\([0-9.]*\)\\".*/\1/p' "$1/Kbuild" | head -1)
	[ -n "$version" ] || fail "$1/Kbuild: does not say a driver version"
	echo "$version"
}

tree_is_open() {
	grep -rqs 'MODULE_LICENSE("Dual MIT/GPL")' "$1/nvidia/nv.c" "$1/nvidia/nv-frontend.c"
}

tree_is_applied() {
	[ -e "$1/nvidia-uvm/uvm_mpsd.h" ]
}

# tree_own FOLDER: makes it, or fails if another user owns it or may write to it, and so could change what is compiled.
tree_own() {
	umask 022
	mkdir -p "$1"
	[ -O "$1" ] && [ -z "$(find "$1/" -maxdepth 0 -perm /022)" ] ||
		fail "$1: another user owns it or may write to it; remove it or name another folder"
}

# tree_copy FROM TO: without what was compiled and the closed part of nvidia.ko, which is large.  The copy is the caller's, and
# nobody else may write to it, whoever owns the tree.
tree_copy() {
	tree_own "$2"
	tar -C "$1" -c --exclude='*.o_binary' --exclude='*.o' --exclude='*.ko' . |
		tar -C "$2" -x --no-same-owner --no-same-permissions
}

# tree_take_ours KMOD UVM: puts our files into nvidia-uvm/ where they differ.  By content, not by date: a newer one may be older
# than what was built (tar, rsync and packages keep dates), and one that is the same is not compiled again.
tree_take_ours() {
	local file
	for file in "$1"/uvm_mpsd* "$1"/include/mpsd_*.h; do
		cmp -s "$file" "$2/${file##*/}" || cp "$file" "$2/"
	done
}
