terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "name" {
  description = "Name of the instance."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the instance."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets, in two zones or more."
  type        = list(string)
}

variable "client_group_ids" {
  description = "Security groups that may connect: those of the nodes with the control planes."
  type        = list(string)
}

variable "instance_class" {
  description = "Size of the instance."
  type        = string
  default     = "db.t4g.medium"
}

variable "storage_gib" {
  description = "Storage at the start, which grows up to ten times of it."
  type        = number
  default     = 50
}

variable "backup_days" {
  description = "Days for which automatic backups are kept."
  type        = number
  default     = 14
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}

resource "aws_db_subnet_group" "phalanx" {
  name_prefix = "${var.name}-"
  subnet_ids  = var.subnet_ids
  tags        = var.tags
}

resource "aws_security_group" "phalanx" {
  name_prefix = "${var.name}-database-"
  description = "PostgreSQL of Phalanx"
  vpc_id      = var.vpc_id
  tags        = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each                     = toset(var.client_group_ids)
  security_group_id            = aws_security_group.phalanx.id
  referenced_security_group_id = each.value
  description                  = "Control planes"
  ip_protocol                  = "tcp"
  from_port                    = 5432
  to_port                      = 5432
}

resource "aws_db_parameter_group" "phalanx" {
  name_prefix = "${var.name}-"
  family      = "postgres17"
  tags        = var.tags

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }
}

resource "aws_db_instance" "phalanx" {
  identifier                   = var.name
  engine                       = "postgres"
  engine_version               = "17"
  instance_class               = var.instance_class
  db_name                      = "phalanx"
  username                     = "phalanx"
  manage_master_user_password  = true
  allocated_storage            = var.storage_gib
  max_allocated_storage        = var.storage_gib * 10
  storage_type                 = "gp3"
  storage_encrypted            = true
  multi_az                     = true
  publicly_accessible          = false
  db_subnet_group_name         = aws_db_subnet_group.phalanx.name
  parameter_group_name         = aws_db_parameter_group.phalanx.name
  vpc_security_group_ids       = [aws_security_group.phalanx.id]
  backup_retention_period      = var.backup_days
  deletion_protection          = true
  final_snapshot_identifier    = "${var.name}-final"
  performance_insights_enabled = true
  copy_tags_to_snapshot        = true
  tags                         = var.tags
}

output "address" {
  description = "Host and port of the database."
  value       = aws_db_instance.phalanx.endpoint
}

output "password_secret_arn" {
  description = "Secret with the name and the password of the owner. Build the URL of it: docs/how-to/postgresql.md"
  value       = aws_db_instance.phalanx.master_user_secret[0].secret_arn
}
