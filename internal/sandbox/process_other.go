//go:build !linux

package sandbox

import "syscall"

// dieWithParent does nothing where the kernel has no such service: a killed
// parent leaves its servers.
func dieWithParent(*syscall.SysProcAttr) {}
