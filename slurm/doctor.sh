#!/usr/bin/env bash
# isostep doctor on the nodes of a job, all ranks together; one task a node:
#
#   srun --nodes=2 --ntasks-per-node=1 bash slurm/doctor.sh [--config FILE ...]
#
# Takes the same variables as train.sbatch.
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1 PET_RDZV_ENDPOINT=$head:$port PET_RDZV_ID=$SLURM_JOB_ID.$SLURM_STEP_ID
procs=${PROCS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
exec "${ISOSTEP_PYTHON:-python}" -m accelerate.commands.launch \
  --config_file "${ACCELERATE_CONFIG:-accelerate_configs/multi_node.yaml}" \
  --num_machines "$SLURM_NNODES" --num_processes "$((SLURM_NNODES * procs))" --machine_rank "$SLURM_NODEID" \
  --main_process_ip "$head" --main_process_port "$port" --rdzv_backend c10d \
  -m isostep doctor "$@"
