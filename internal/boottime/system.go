package boottime

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// system reads the clock that runs on during a suspend and cannot be set:
// CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC_RAW on macOS. It costs a system call,
// 330 ns where time.Now is 50.
func system() time.Duration {
	id := int32(unix.CLOCK_MONOTONIC_RAW)
	if runtime.GOOS == "linux" { // where CLOCK_MONOTONIC_RAW stops
		id = 7 // CLOCK_BOOTTIME
	}
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // fails for an unknown clock only
	return time.Duration(t.Nano())
}
