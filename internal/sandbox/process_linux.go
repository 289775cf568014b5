package sandbox

import "syscall"

// dieWithParent has the kernel interrupt the child when its parent dies: for
// Postgres SIGINT is a fast shutdown, for Redis a plain one.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
