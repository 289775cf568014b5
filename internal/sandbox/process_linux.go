package sandbox

import "syscall"

// dieWithParent makes the kernel send SIGINT to the child when its parent ends. At
// SIGINT Postgres makes a fast shutdown, and Redis an ordinary one.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
