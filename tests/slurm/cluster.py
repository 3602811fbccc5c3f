"""A real SLURM cluster on this machine: slurmctld, munged, and a slurmd for each node in its own network namespace.

Each node has its own address and host name, so that it can be cut off from the others and be given back. Needs root and
Debian's slurm-wlm, munge and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

NETWORK = "10.93.0"
BRIDGE = "isobr0"
THERE = Path("/run/isostep-cluster")  # the folder of the cluster that is up: one that was killed is cleared away
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "scontrol",
    "squeue",
    "scancel",
    "munged",
    "ip",
    "nsenter",
    "unshare",
)
CONF = """\
ClusterName=isostep
SlurmctldHost=head({network}.250)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=1
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
SlurmdTimeout=10
ReturnToService=2
{nodes}
PartitionName=batch Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=25
PartitionName=urgent Nodes=ALL State=UP PriorityTier=9 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Why no cluster can be started here; None where one can."""
    if os.geteuid() != 0:
        return "starting a SLURM cluster needs root"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"a SLURM cluster needs slurm-wlm, munge and iproute2 (no {', '.join(missing)})"
    probe = subprocess.run(["ip", "netns", "add", "isoprobe"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", "isoprobe"], capture_output=True)
    return None if probe.returncode == 0 else f"no network namespaces here: {probe.stderr.strip()}"


def sh(*command: str, check: bool = True, **named: object) -> str:
    """A command's output. Raises AssertionError with what it said where it fails (`check`)."""
    done = subprocess.run(command, text=True, capture_output=True, **named)  # type: ignore[call-overload]
    assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return str(done.stdout)


class Cluster:
    """Two nodes of `cpus` CPUs each, partitions batch (preemptible) and urgent."""

    def __init__(self, root: Path, nodes: int = 2, cpus: int = 2) -> None:
        self.root = root
        self.nodes = [f"iso{i}" for i in range(1, nodes + 1)]
        self.cpus = cpus
        self.env = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}

    def up(self) -> None:
        """Start everything and wait until all nodes are idle."""
        if THERE.exists():
            Cluster(Path(THERE.read_text())).down()
        THERE.write_text(str(self.root))
        (self.root / "state").mkdir(parents=True)
        self._hosts(True)
        self._munge()
        sh("ip", "link", "add", BRIDGE, "type", "bridge")
        sh("ip", "addr", "add", f"{NETWORK}.250/24", "dev", BRIDGE)
        sh("ip", "link", "set", BRIDGE, "up")
        for i, node in enumerate(self.nodes, 1):
            sh("ip", "netns", "add", node)
            sh("ip", "link", "add", f"{node}v", "type", "veth", "peer", "name", "eth0", "netns", node)
            sh("ip", "link", "set", f"{node}v", "master", BRIDGE, "up")
            sh("ip", "-n", node, "addr", "add", f"{NETWORK}.{i}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                sh("ip", "-n", node, "link", "set", link, "up")
            (self.root / f"spool-{node}").mkdir()
        lines = [f"NodeName={node} NodeAddr={NETWORK}.{i} CPUs={self.cpus} State=UNKNOWN" for i, node in
                 enumerate(self.nodes, 1)]  # fmt: skip
        conf = CONF.format(network=NETWORK, root=self.root, nodes="\n".join(lines))
        (self.root / "slurm.conf").write_text(conf, encoding="utf-8")
        sh("unshare", "--uts", "sh", "-c", "hostname head; exec slurmctld", env=self.env)
        for node in self.nodes:
            self._slurmd(node)
        self.until(lambda: self.idle() == len(self.nodes), 60)

    def _slurmd(self, node: str) -> None:
        # entering the network namespace alone: `ip netns exec` mounts another /sys, without the cgroups
        inside = ["nsenter", f"--net=/run/netns/{node}", "unshare", "--uts", "sh", "-c"]
        sh(*inside, f"hostname {node}; exec slurmd -N {node}", env=self.env)

    def _munge(self) -> None:
        """A munged of this cluster's own, with its own key and socket."""
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.root.chmod(0o755)
        sh("munged", "--force", f"--key-file={key}", f"--socket={self.root}/munge.socket",
           f"--pid-file={self.root}/munge.pid", f"--log-file={self.root}/munge.log",
           f"--seed-file={self.root}/munge.seed")  # fmt: skip

    def _hosts(self, there: bool) -> None:
        """The nodes' names in /etc/hosts, or out of it; written in place, since a container may have it mounted."""
        path = Path("/etc/hosts")
        kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{NETWORK}.")]
        if there:
            kept += [f"{NETWORK}.250 head", *(f"{NETWORK}.{i} {node}" for i, node in enumerate(self.nodes, 1))]
        path.write_text("\n".join(kept) + "\n")

    def idle(self) -> int:
        """Nodes that wait for work."""
        return int(self.run("sinfo", "-h", "-t", "idle", "-p", "batch", "-o", "%D") or 0)

    def run(self, *command: str, check: bool = True) -> str:
        """A client's output."""
        return sh(*command, check=check, env=self.env).strip()

    def until(self, there: object, seconds: float, what: object = "") -> None:
        """Wait until `there()` holds. Raises AssertionError after `seconds`."""
        end = time.monotonic() + seconds
        while not there():  # type: ignore[operator]
            assert time.monotonic() < end, f"waited {seconds} s in vain: {what() if callable(what) else what}"
            time.sleep(0.2)

    def state(self, job: str) -> str:
        """SLURM's state of a job; of one that is forgotten, GONE."""
        found = re.search(r"JobState=(\S+)", self.run("scontrol", "show", "job", job, check=False))
        return found.group(1) if found else "GONE"

    def restarts(self, job: str) -> int:
        found = re.search(r"Restarts=(\d+)", self.run("scontrol", "show", "job", job))
        assert found is not None
        return int(found.group(1))

    def cut(self, node: str) -> None:
        """Take a node's network away: nothing dies, nobody is told."""
        sh("ip", "-n", node, "link", "set", "eth0", "down")

    def heal(self, node: str) -> None:
        """Give the network back, and wait until SLURM has the node back: a slurmd that starts says so at once."""
        sh("ip", "-n", node, "link", "set", "eth0", "up")
        pid = int((self.root / f"slurmd-{node}.pid").read_text())
        os.kill(pid, 15)
        self.until(lambda: not Path(f"/proc/{pid}").exists(), 30, "slurmd lives on")
        self._slurmd(node)
        self.until(lambda: self.idle() == len(self.nodes), 60, f"{node} is not back")

    def down(self) -> None:
        """Stop and remove everything, whatever of it there is."""
        with contextlib.suppress(AssertionError):
            self.run("scancel", "--signal=KILL", "--full", "-u", "root")
        for file in self.root.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), 15)
        time.sleep(1)
        for node in self.nodes:
            for pid in sh("ip", "netns", "pids", node, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            sh("ip", "netns", "del", node, check=False)
            sh("ip", "link", "del", f"{node}v", check=False)
        sh("ip", "link", "del", BRIDGE, check=False)
        self._hosts(False)
        THERE.unlink(missing_ok=True)


@contextlib.contextmanager
def running(root: Path) -> Iterator[Cluster]:
    """A cluster that is taken down in every case."""
    made = Cluster(root)
    try:
        made.up()
        yield made
    finally:
        made.down()
