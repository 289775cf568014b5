//go:build !linux && !darwin

package boottime

import "time"

func system() (time.Duration, bool) { return 0, false }
