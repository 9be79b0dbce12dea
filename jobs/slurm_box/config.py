"""slurm.conf and gres.conf of a box."""

import time

from slurm_box.folder import Box, free_ports

COMMON = """\
ClusterName=box
FirstJobId={first_job}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={box.munge},cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny

# Everything it writes.
StateSaveLocation={box.folder}/state
SlurmctldPidFile={box.folder}/slurmctld.pid
SlurmctldLogFile={box.folder}/slurmctld.log
SlurmdSpoolDir={box.folder}/spool/%n
SlurmdPidFile={box.folder}/%n.pid
SlurmdLogFile={box.folder}/%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={box.folder}/jobs.txt
MailProg=/bin/true

# Nodes may claim more than this machine has; nothing is confined.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core

# A job that is queued again waits until its credential has expired (above: 5 seconds).
# What cannot run is refused when it is submitted; what can starts soon.
EnforcePartLimits=ALL
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
MinJobAge=86400
KillWait=30

"""


def write(box: Box) -> None:
    """Write both files, with ports that are free now."""
    controller, *ports = free_ports(1 + box.nodes)
    # By the clock: results are named by numbers of jobs, and those of an earlier box are not to be overwritten.
    first_job = 1 + int(time.time()) % 50_000_000   # Slurm's own limit is 67 million
    lines = [COMMON.format(box=box, port=controller, first_job=first_job)]
    gres = f' Gres=gpu:{box.gpus}' if box.gpus else ''
    if box.gpus:
        lines.append('GresTypes=gpu\n')
    for name, port in zip(box.names, ports, strict=True):
        lines.append(f'NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={box.cpus} '
                     f'RealMemory=4000{gres} State=UNKNOWN\n')
    lines.append('PartitionName=cpu Nodes=ALL Default=YES State=UP DefaultTime=60 MaxTime=1440\n')
    if box.gpus:
        lines.append('PartitionName=gpu Nodes=ALL State=UP DefaultTime=60 MaxTime=1440\n')
    box.conf.write_text(''.join(lines))
    last = f'[0-{box.gpus - 1}]' if box.gpus > 1 else '0'
    (box.folder / 'gres.conf').write_text(''.join(
        f'NodeName={name} Name=gpu File={box.folder}/dev/nvidia{last}\n' for name in box.names if box.gpus))
