package node

import (
	"context"
	"log/slog"
	"net"

	"listedge/internal/fleet"
)

// notifySystemd tells systemd (Type=notify) once that the node is ready. socket is where it waits for that; empty = it does not.
func notifySystemd(ctx context.Context, socket string, ready func() bool, logger *slog.Logger) {
	for socket != "" && ctx.Err() == nil {
		if !ready() {
			fleet.Pause(ctx, watchInterval)
			continue
		}
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() }) // systemd may read late, or never
			_, err = conn.Write([]byte("READY=1"))
			stop()
			conn.Close()
		}
		if err != nil {
			logger.Error("systemd does not learn that the node is ready", "error", err)
		}
		return
	}
}
